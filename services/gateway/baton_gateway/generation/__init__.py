"""One generation: the request, its admission, its output and logprobs."""
