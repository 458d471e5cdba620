"""The composition root below the CLI: joins plan, tasks, servers, runner, statistics and report."""
