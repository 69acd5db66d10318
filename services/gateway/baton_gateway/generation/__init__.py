"""One generation inside the gateway: the request, its admission, its output and logprobs."""
