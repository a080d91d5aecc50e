"""The prefix cache side by side with the trees of SGLang and the block pool of vLLM."""
