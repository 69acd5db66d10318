"""Requests and answers of files, uploads and batches."""
