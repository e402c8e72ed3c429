"""What runs show of a privacy loss: lower bounds on ε, held against what is claimed."""
