"""Privacy audits: empirical lower bounds on ε, compared with the claimed guarantee."""
