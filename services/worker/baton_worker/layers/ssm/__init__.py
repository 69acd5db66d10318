"""State-space models, delta nets and linear attention."""
