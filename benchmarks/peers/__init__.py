"""Phloem side by side with other servers for CPUs: llama.cpp, vLLM and OpenVINO GenAI."""
