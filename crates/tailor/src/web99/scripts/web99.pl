#!/usr/bin/perl
# The dynamic operations of the web99 workload as a CGI program. Every client that reaches it may use Reset and Fetch:
# run it in a laboratory, not on the Internet.
#
# Needs DOCUMENT_ROOT (with file_set below it) and WEB99_DATA (a directory that it may write to). It uses no modules:
# loading them would take longer than the work.

use strict;
use warnings;

my $ADS = 360;
my ($AD_RECORD_BYTES, $PERSONALITY_RECORD_BYTES, $USER_ID_FIRST) = (39, 15, 10000);
my ($LOG_HEAD_BYTES, $LOG_RECORD_BYTES) = (11, 139);
my $LOCK_EX = 2;
# Masks of the groups in a word of demographics, and the positions of their weights.
my @GROUPS = ([0x30000000, 16], [0x0f000000, 12], [0x00f00000, 8], [0x000ffc00, 4], [0x000003ff, 0]);
my $FILE = qr{^/file_set/dir[0-9]{5}/class([0-3])_[0-8]\z};

binmode STDOUT;
my $query = $ENV{QUERY_STRING} // '';
if ($query =~ s{^command/}{}) {
    answer_command($query);
} elsif ($ENV{REQUEST_METHOD} eq 'POST') {
    answer_post();
} else {
    answer_get($query);
}

sub answer_get {
    my ($path) = @_;
    my ($class) = $path =~ $FILE or refuse('404 Not Found');
    my $content = content($path);
    my $cookie = my_cookie();
    return reply('', $content) unless defined $cookie;
    my ($ad, $weight, $expired) = choose_ad($cookie);
    if ($ad >= 0 && ($class == 1 || $class == 2)) {
        my $name = file_name(int($ad / 36), int($ad % 36 / 9), $ad % 9);
        $content =~ s{(<!WEB99CAD><IMG SRC=")/file_set/dir[0-9]{5}/class[0-3]_[0-8]("><!/WEB99CAD>)}{$1$name$2}g;
    }
    reply("Set-Cookie: found_cookie=Ad_id=$ad&Ad_weight=$weight&Expired=$expired\r\n", $content);
}

sub answer_post {
    my $body = '';
    read STDIN, $body, 1024 if $ENV{CONTENT_LENGTH};
    my $form = qr{^urlroot=/file_set,dir=([0-9]{1,5}),class=([0-3]),num=([0-8]),client=([0-9]{1,10})\z};
    my ($dir, $class, $num, $client) = $body =~ $form or refuse('400 Bad Request');
    my ($user_id) = (my_cookie() // '') =~ /^user_id=([0-9]{5})&/ or refuse('400 Bad Request');
    my $uid = $user_id - $USER_ID_FIRST;
    my $name = file_name($dir, $class, $num);
    my $content = content($name);
    append_to_log($dir, $class, $num, $client, $name, $uid);
    reply("Set-Cookie: my_cookie=$uid\r\n", $content);
}

sub answer_command {
    my ($command) = @_;
    if ($command =~ /^Reset&users=([0-9]{1,5})&seed=([0-9]{1,9})&now=([0-9]{1,10})\z/) {
        reset_data($1, $2, $3);
        reply('', 'done');
    } elsif ($command eq 'Fetch') {
        reply('', read_file(data('post.log')));
    } else {
        refuse('400 Bad Request');
    }
}

# Chooses the first ad after the user's last one that suits the user. Returns its number, its weight, and 1 if it has
# expired.
sub choose_ad {
    my ($cookie) = @_;
    my ($user_id, $last_ad) = $cookie =~ /^user_id=([0-9]{5})&last_ad=([0-9]{1,3})\z/ or return (-1, 0, 1);
    return (-1, 0, 1) if $last_ad >= $ADS || $user_id < $USER_ID_FIRST;
    open my $personalities, '<:raw', data('User.Personality') or refuse('500 Internal Server Error');
    seek $personalities, ($user_id - $USER_ID_FIRST) * $PERSONALITY_RECORD_BYTES, 0;
    return (-1, 0, 1) if read($personalities, my $record, $PERSONALITY_RECORD_BYTES) != $PERSONALITY_RECORD_BYTES;
    my $user = hex substr $record, 6, 8;
    my $ads = read_file(data('Custom.Ads'));
    for my $step (1 .. $ADS) {
        my $ad = ($last_ad + $step) % $ADS;
        my $at = $ad * $AD_RECORD_BYTES;
        my $common = $user & hex substr $ads, $at + 6, 8;
        my $weights = hex substr $ads, $at + 15, 8;
        my $weight = 0;
        for my $group (@GROUPS) {
            $weight += $weights >> $group->[1] & 15 if $common & $group->[0];
        }
        if ($weight >= substr $ads, $at + 24, 3) {
            return ($ad, $weight, time > substr($ads, $at + 28, 10) ? 1 : 0);
        }
    }
    return (-1, 0, 1);
}

# Appends a record. The count in the first line is written after it, so that it never counts a missing record.
sub append_to_log {
    my ($dir, $class, $num, $client, $name, $uid) = @_;
    open my $log, '+<:raw', data('post.log') or refuse('500 Internal Server Error');
    flock $log, $LOCK_EX;
    read $log, my ($count), $LOG_HEAD_BYTES;
    $count += 0;
    seek $log, $LOG_HEAD_BYTES + $count * $LOG_RECORD_BYTES, 0;
    my $form = "%10d %10d %10d %5d %2d %2d %10d %-60.60s %10d %10d\n";
    printf $log $form, $count + 1, time, $$, $dir, $class, $num, $client, $name, $$, $uid;
    seek $log, 0, 0;
    printf $log "%10d\n", $count + 1;
    close $log;
}

# Creates the tables, which are the same everywhere for the same numbers, and empties the log.
sub reset_data {
    my ($users, $seed, $now) = @_;
    my $state = $seed;
    my $draw = sub { $state = ($state * 1103515245 + 12345) & 0x7fffffff; return ($state >> 8) % $_[0] };
    my $ads = '';
    for my $ad (0 .. $ADS - 1) {
        my $word = (1 + $draw->(3)) << 28;
        $word |= (1 + $draw->(15)) << 24;
        $word |= (1 + $draw->(15)) << 20;
        $word |= (1 + $draw->(1023)) << 10;
        $word |= 1 + $draw->(1023);
        my $weights = 0;
        $weights = $weights << 4 | $draw->(10) for 1 .. 5;
        my $minimum = 10 + $draw->(25);
        my $expiry = $draw->(10) == 0 ? $now - 86400 : $now + 30 * 86400;
        $ads .= sprintf "%5d %08X %08X %3d %10d\n", $ad, $word, $weights, $minimum, $expiry;
    }
    my $personalities = '';
    for my $user (0 .. $users - 1) {
        my $word = 1 << 28 + $draw->(2);
        $word |= 1 << 24 + $draw->(4);
        $word |= 1 << 20 + $draw->(4);
        $word |= 1 << 10 + $draw->(10);
        $word |= 1 << 10 + $draw->(10);
        $word |= 1 << $draw->(10);
        $word |= 1 << $draw->(10);
        $personalities .= sprintf "%5d %08X\n", $USER_ID_FIRST + $user, $word;
    }
    replace_file('Custom.Ads', $ads);
    replace_file('User.Personality', $personalities);
    replace_file('post.log', sprintf "%10d\n", 0);
}

# Replaces a file in one step: readers see either the old file or the new one.
sub replace_file {
    my ($name, $content) = @_;
    open my $file, '>:raw', data("$name.new") or refuse('500 Internal Server Error');
    print $file $content;
    close $file;
    rename data("$name.new"), data($name);
}

sub read_file {
    my ($path) = @_;
    open my $file, '<:raw', $path or refuse('404 Not Found');
    local $/;
    return scalar <$file>;
}

sub content { return read_file($ENV{DOCUMENT_ROOT} . $_[0]) }

sub file_name { return sprintf '/file_set/dir%05d/class%d_%d', @_ }

sub data { return "$ENV{WEB99_DATA}/$_[0]" }

# Value of the cookie `my_cookie`; undefined without one.
sub my_cookie {
    return ($ENV{HTTP_COOKIE} // '') =~ /(?:^|; *)my_cookie=([^;]*)/ ? $1 : undef;
}

sub reply {
    my ($fields, $content) = @_;
    my $body = "<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n";
    $body .= "<p>$_ = " . ($ENV{$_} // '') . "\n" for qw(SERVER_SOFTWARE REMOTE_ADDR SCRIPT_NAME QUERY_STRING);
    $body .= "<pre>\n$content\n</pre>\n</body></html>\n";
    print "Content-Type: text/html\r\n${fields}Content-Length: ", length $body, "\r\n\r\n", $body;
}

sub refuse {
    print "Status: $_[0]\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n";
    exit;
}
