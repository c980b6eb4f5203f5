"""What all scenarios share: servers, clients, accounting, files to serve, rounds and the report."""
