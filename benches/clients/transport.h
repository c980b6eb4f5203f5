/* Transport of a connection: its socket, or TLS over it (OpenSSL, with -DWITH_TLS). All calls behave as those of a
 * non-blocking socket: -1 and EAGAIN if there is nothing to do now. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifndef WITH_TLS

struct tls {};

static inline void tls_start(const char *groups) {
  if (groups) fprintf(stderr, "load was built without TLS\n"), exit(2);
}
static inline int tls_open(struct tls *tls, int fd, int resumes) { (void)tls, (void)fd, (void)resumes; return 0; }
static inline int tls_handshake(struct tls *tls) { (void)tls; return 1; }
static inline int tls_is_resumed(struct tls *tls) { (void)tls; return 0; }
static inline void tls_close(struct tls *tls) { (void)tls; }
static inline ssize_t tls_receive(struct tls *tls, int fd, char *bytes, size_t count) { (void)tls; return recv(fd, bytes, count, 0); }
static inline ssize_t tls_send(struct tls *tls, int fd, const char *bytes, size_t count) { (void)tls; return send(fd, bytes, count, MSG_NOSIGNAL); }

#else
#include <openssl/ssl.h>

struct tls {
  SSL *ssl;
  SSL_SESSION *session; /* the newest, for a handshake that resumes it */
};

static SSL_CTX *tls_context;

static int tls_keep_session(SSL *ssl, SSL_SESSION *session) {
  struct tls *tls = SSL_get_app_data(ssl);
  if (tls->session) SSL_SESSION_free(tls->session);
  tls->session = session;
  return 1;
}

/* Without groups there is no TLS. */
static void tls_start(const char *groups) {
  if (!groups) return;
  tls_context = SSL_CTX_new(TLS_client_method());
  if (!tls_context || !SSL_CTX_set1_groups_list(tls_context, groups)) fprintf(stderr, "TLS: no groups `%s`\n", groups), exit(2);
  SSL_CTX_set_min_proto_version(tls_context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(tls_context, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_mode(tls_context, SSL_MODE_RELEASE_BUFFERS); /* saves memory with thousands of connections */
  SSL_CTX_set_session_cache_mode(tls_context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(tls_context, tls_keep_session);
}

/* Returns whether there is a handshake to make. */
static int tls_open(struct tls *tls, int fd, int resumes) {
  if (!tls_context) return 0;
  tls->ssl = SSL_new(tls_context);
  SSL_set_app_data(tls->ssl, tls), SSL_set_fd(tls->ssl, fd), SSL_set_connect_state(tls->ssl);
  if (resumes && tls->session) SSL_set_session(tls->ssl, tls->session);
  return 1;
}

/* As a system call would say it. */
static ssize_t tls_result(struct tls *tls, int result) {
  if (result > 0) return result;
  int error = SSL_get_error(tls->ssl, result);
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
  return -1;
}

static int tls_handshake(struct tls *tls) { return tls_result(tls, SSL_do_handshake(tls->ssl)); }

static int tls_is_resumed(struct tls *tls) { return tls->ssl && SSL_session_reused(tls->ssl); }

static void tls_close(struct tls *tls) {
  if (!tls->ssl) return;
  SSL_set_shutdown(tls->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN); /* else its session would not be resumed */
  SSL_free(tls->ssl), tls->ssl = NULL;
}

static ssize_t tls_receive(struct tls *tls, int fd, char *bytes, size_t count) {
  return tls->ssl ? tls_result(tls, SSL_read(tls->ssl, bytes, count)) : recv(fd, bytes, count, 0);
}

static ssize_t tls_send(struct tls *tls, int fd, const char *bytes, size_t count) {
  return tls->ssl ? tls_result(tls, SSL_write(tls->ssl, bytes, count)) : send(fd, bytes, count, MSG_NOSIGNAL);
}
#endif
