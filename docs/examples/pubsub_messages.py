"""Prints what a subscription has: python pubsub_messages.py projects/P/subscriptions/S."""

import sys

from google.cloud import pubsub_v1

with pubsub_v1.SubscriberClient() as client:
    found = client.pull(subscription=sys.argv[1], max_messages=100).received_messages
    for each in found:
        print(each.message.attributes["event_id"], each.message.data.decode())
    # A consumer that has done its work calls `acknowledge`; this one gives the messages back.
    taken = [each.ack_id for each in found]
    if taken:
        client.modify_ack_deadline(subscription=sys.argv[1], ack_ids=taken, ack_deadline_seconds=0)
