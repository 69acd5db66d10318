"""Media in, tensors and placeholder counts out. Stateless."""
