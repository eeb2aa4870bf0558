"""`tln serve`: an OpenAI-compatible endpoint on the trusted machine, with the middle of the model elsewhere.

    HTTP (app, access) -> body (schema) -> prompts -> engine -> links (a session and a thread each) -> untrusted node
                                            engine -> layers (head and tail of all texts in one pass each)

The engine is one thread. Texts join and leave between its steps; a text that waits for its answer from the untrusted
node holds up no other. Needs the extra `splitwire[http]`.
"""
