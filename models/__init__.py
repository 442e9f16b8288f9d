"""What web and worker have in common: the rules, and the keeping of what they decide upon."""
