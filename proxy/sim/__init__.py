"""The simulated driver of the gate, the vLLM engine model, and the mock vLLM server."""
