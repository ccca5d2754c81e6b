"""Models of cost: messages, collectives, schedules of pipelines, experts on ranks, checkpoints."""
