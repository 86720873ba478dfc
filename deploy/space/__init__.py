"""The environment of a Hugging Face Space."""
