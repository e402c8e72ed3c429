"""What all tables and figures share: text, numbers in words, colours, styles and panels."""
