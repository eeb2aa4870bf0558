"""The tap: a transparent gRPC proxy between a trusted and an untrusted node that keeps every byte as a wire bundle.

It is a standing man in the middle by intent: both nodes must opt in (the trusted node connects to it by name, the
untrusted node lists its certificate), and it belongs on the trusted host. Reading order: hops (what a message is),
observer (messages to records), recording (records to the bundle), upstream (the way to the untrusted node), proxy
(one call), server (the process).
"""

from auditor.tap.server import Tap, serve
from auditor.tap.settings import TapSettings

__all__ = ["Tap", "TapSettings", "serve"]
