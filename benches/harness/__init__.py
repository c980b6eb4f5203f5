"""What the scenarios share: servers, clients, accounting, files to serve, turns and the report."""
