"""How dibs is run: the `dibs` command, the embedded Valkey and PostgreSQL, and the processes' supervision."""
