//! What nginx is told and needs no telling here.

use super::Notes;
use super::syntax::Directive;

/// Takes up a directive for what is always so here, or measured to be best, and says whether it is one.
pub(super) fn add(directive: &Directive, notes: &mut Notes) -> bool {
    let why = match directive.name.as_str() {
        "sendfile" | "sendfile_max_chunk" | "aio" | "aio_write" | "directio" | "directio_alignment" | "tcp_nopush"
        | "tcp_nodelay" | "output_buffers" | "postpone_output" | "read_ahead" => {
            "files are sent in the way that costs least"
        }
        "open_file_cache" | "open_file_cache_valid" | "open_file_cache_min_uses" | "open_file_cache_errors" => {
            "files are kept in memory, and looked at again when they change"
        }
        "types_hash_max_size"
        | "types_hash_bucket_size"
        | "server_names_hash_bucket_size"
        | "server_names_hash_max_size"
        | "variables_hash_max_size"
        | "variables_hash_bucket_size"
        | "map_hash_max_size"
        | "map_hash_bucket_size"
        | "connection_pool_size"
        | "request_pool_size"
        | "client_header_buffer_size"
        | "client_body_buffer_size"
        | "proxy_headers_hash_max_size"
        | "proxy_headers_hash_bucket_size"
        | "client_body_temp_path"
        | "client_body_in_file_only"
        | "client_body_in_single_buffer" => "tables and buffers have the size that they need",
        "gzip_comp_level" | "gzip_types" | "gzip_proxied" | "gzip_vary" | "gzip_disable" | "gzip_http_version"
        | "gzip_buffers" | "gunzip" | "brotli_comp_level" | "brotli_types" | "zstd_types" | "zstd_comp_level" => {
            "files of compressible types are compressed once, and kept; `Vary` is always there"
        }
        "disable_symlinks" => "links that lead out of the root are always refused",
        "reset_timedout_connection"
        | "lingering_close"
        | "lingering_time"
        | "lingering_timeout"
        | "keepalive_disable"
        | "chunked_transfer_encoding"
        | "msie_padding"
        | "msie_refresh"
        | "etag"
        | "if_modified_since"
        | "max_ranges"
        | "absolute_redirect"
        | "port_in_redirect"
        | "server_name_in_redirect"
        | "merge_slashes"
        | "underscores_in_headers"
        | "ignore_invalid_headers"
        | "port" => "connections, ranges and conditions are dealt with as the RFCs say",
        "resolver" | "resolver_timeout" => "names of servers behind are looked up by the system's resolver",
        "autoindex_exact_size" | "autoindex_localtime" | "autoindex_format" => {
            "listings have both, and are JSON for clients that ask for it"
        }
        _ => return false,
    };
    notes.needless(directive, why);
    true
}
