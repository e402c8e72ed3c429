"""Grids of hyper-parameters and seeds as one program: members, memory, chunks on disk, results with named axes."""
