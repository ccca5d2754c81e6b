"""Models of cost: messages, collectives, and the schedules of pipelines."""
