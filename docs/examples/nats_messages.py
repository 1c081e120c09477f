"""Prints the messages of a JetStream stream: python nats_messages.py URL STREAM."""

import asyncio
import sys

import nats


async def main(url, stream):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    state = (await jetstream.stream_info(stream)).state
    for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
        message = await jetstream.get_msg(stream, sequence)
        print(message.headers["Nats-Msg-Id"], message.data.decode())
    await client.close()


asyncio.run(main(*sys.argv[1:]))
