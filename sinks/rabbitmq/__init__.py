"""The RabbitMQ sink."""
