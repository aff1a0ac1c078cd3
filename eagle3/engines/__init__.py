"""Where tokens and hidden states come from: vLLM servers of the run's own, and transformers for small targets."""
