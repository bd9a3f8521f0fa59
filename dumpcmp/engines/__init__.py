"""Who does the work: processes of this machine, or workers of an engine: Dask, Ray, MPI."""
