"""Part 4, the online wrapper: an OpenAI-compatible server around the engine. Needs the extra `serve`.

policy.py        which step comes next when arrivals never end: the longest gap between two tokens is bounded
encoder.py       text becomes tokens, in a thread of its own
stop_strings.py  a text ends where a stop string begins, though it comes in pieces
ticket.py        one request on its way through the server, and what it is told
engine_loop.py   the thread that owns the engine
service.py       the asyncio side of it: admission, deadlines, draining
protocol.py      OpenAI's request and response bodies
metrics.py       what Prometheus reads
app.py           the routes; server.py: sockets and signals; command.py: `nanovllm serve`
openapi.py       the same bodies for OpenAPI
load_plan.py     a load: what is sent and when; trace_file.py: traces for replay; load_report.py: the figures
load.py          the load generator over HTTP; load_engine.py: the same without HTTP
"""
