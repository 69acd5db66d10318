"""Steps of projectors with layers of their own: from the states of a part to fewer vectors."""
