"""Routes of files, uploads and batches."""
