"""The worker process: takes a partition, decides its windows, commits and answers."""
