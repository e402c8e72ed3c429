"""From noise to ε: one family of mechanisms a file, and dp-accounting as the second opinion."""
