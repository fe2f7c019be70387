"""The sample models, each beside the seeded script that makes it."""
