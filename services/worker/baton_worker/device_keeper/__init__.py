"""Memory of a GPU that outlives its workers: weights and KV pages, by CUDA IPC.

driver        allocate, export and open memory of a GPU: CUDA's driver library
messages      requests of a worker to the keeper of its GPU
keeper        the process that holds the memory
kept_memory   a worker's side
places        tensors one behind the other in such memory

`baton.process.segments` does the same for the host.
"""
