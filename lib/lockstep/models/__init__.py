"""What things cost, by models: messages, collectives, and the schedules of pipelines."""
