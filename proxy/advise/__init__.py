"""Pure arithmetic for people: plans, diagnoses, comparisons."""
