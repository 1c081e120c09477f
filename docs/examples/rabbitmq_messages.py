"""Prints the messages of a queue, each event once: python rabbitmq_messages.py URL QUEUE."""

import sys

import pika

url, queue = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
seen = set()  # a consumer keeps this beside what it makes of the events
while True:
    method, properties, body = channel.basic_get(queue)
    if method is None:  # the queue is empty
        break
    if properties.message_id not in seen:
        seen.add(properties.message_id)
        print(properties.message_id, body.decode())
connection.close()  # no message was acknowledged, so all of them stay
