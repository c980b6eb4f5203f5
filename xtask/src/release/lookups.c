/* Linked into released programs: names of hosts, users and groups are looked up by what libc has built in, which is files
 * and DNS. Else a statically linked libc loads whatever the machine's nsswitch.conf names (systemd, mdns), made for the libc
 * of that machine; where it is another version, that crashes.
 */
#include <nss.h>

__attribute__((constructor)) static void use_built_in_lookups(void)
{
    static const char *const databases[][2] = {
        {"hosts", "files dns"}, {"passwd", "files"}, {"group", "files"}, {"initgroups", "files"}, {"services", "files"},
    };
    for (unsigned index = 0; index < sizeof databases / sizeof *databases; index++)
        __nss_configure_lookup(databases[index][0], databases[index][1]);
}
