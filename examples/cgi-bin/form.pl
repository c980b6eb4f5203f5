#!/usr/bin/perl
# A form, by CGI.pm (Debian: libcgi-pm-perl).
use strict;
use warnings;
use CGI qw(-utf8);

my $query = CGI->new;
my $name = $query->escapeHTML($query->param('name') // 'world');
print $query->header(-type => 'text/html', -charset => 'utf-8');
print "<!doctype html><title>Hello</title><p>Hello, $name!</p>",
    "<form method=\"post\"><input name=\"name\"><button>Greet</button></form>\n";
