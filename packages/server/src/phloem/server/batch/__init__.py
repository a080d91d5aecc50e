"""Batches in OpenAI's file format: requests in, results out, each once, however often it is run."""
