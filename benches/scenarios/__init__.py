"""The scenarios, in the order of the table in BENCHMARKS.md."""

from . import (absent, bots, closing, cold_disk, compression, conditional, disk_cache, forward_auth, forwarding, http2, http3, http3_flood, idle,
               keep_alive, module, overload, page, scripts, sizes, slow_readers, socket_options, start, tls, web99, zipf)

ALL = [keep_alive.KEEP_ALIVE, keep_alive.PIPELINED, closing.CLOSE, closing.TEN, socket_options.SOCKET_OPTIONS, sizes.SIZES, conditional.MIXED, absent.ABSENT,
       bots.BOTS, idle.IDLE, slow_readers.SLOW_READERS, start.START, zipf.ZIPF, cold_disk.COLD_DISK,
       forwarding.FORWARDING, compression.COMPRESSION, forward_auth.FORWARD_AUTH, disk_cache.DISK_CACHE, scripts.SCRIPTS,
       overload.OVERLOAD, module.MODULE, web99.WEB99, tls.TLS, http2.HTTP2, http3.HTTP3, http3_flood.HTTP3_FLOOD,
       page.PAGE, page.PAGE_LOSS, idle.IDLE_TLS]
