"""What things cost, by models: the α–β model of messages and collectives."""
