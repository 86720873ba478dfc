"""The server of a Hugging Face Space."""
