"""Sweeps: grids of hyper-parameters and seeds in one program, run in chunks, with named axes in the results."""
