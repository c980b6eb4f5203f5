"""Parts that all scenarios share: servers, clients, accounting, files to serve, turns and the report."""
