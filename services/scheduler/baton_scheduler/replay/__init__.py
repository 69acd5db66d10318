"""Recorded decisions: the flight recorder and the simulator."""
