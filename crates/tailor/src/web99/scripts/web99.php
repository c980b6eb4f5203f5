<?php
// The dynamic operations of the web99 workload, for php-fpm. Every client that reaches this script may use Reset and
// Fetch: run it in a laboratory, not on the Internet.
//
// Needs DOCUMENT_ROOT (with file_set below it) and WEB99_DATA (a directory that it may write to).

declare(strict_types=1);

const ADS = 360;
const AD_RECORD_BYTES = 39;
const PERSONALITY_RECORD_BYTES = 15;
const USER_ID_FIRST = 10000;
const LOG_HEAD_BYTES = 11;
const LOG_RECORD_BYTES = 139;
// Masks of the groups in a word of demographics, and the positions of their weights.
const GROUPS = [[0x30000000, 16], [0x0f000000, 12], [0x00f00000, 8], [0x000ffc00, 4], [0x000003ff, 0]];
const TAG = '~<!WEB99CAD><IMG SRC="\K/file_set/dir[0-9]{5}/class[0-3]_[0-8](?="><!/WEB99CAD>)~';
const FILE = '~^/file_set/dir[0-9]{5}/class([0-3])_[0-8]$~D';

$query = $_SERVER['QUERY_STRING'] ?? '';
if (str_starts_with($query, 'command/')) {
    answer_command(substr($query, strlen('command/')));
} elseif ($_SERVER['REQUEST_METHOD'] === 'POST') {
    answer_post();
} else {
    answer_get($query);
}

function answer_get(string $path): void
{
    if (!preg_match(FILE, $path, $parts)) {
        refuse(404);
    }
    $content = content($path);
    $cookie = my_cookie();
    if ($cookie === null) {
        reply($content);
        return;
    }
    [$ad, $weight, $expired] = choose_ad($cookie);
    header("Set-Cookie: found_cookie=Ad_id=$ad&Ad_weight=$weight&Expired=$expired");
    if ($ad >= 0 && ($parts[1] === '1' || $parts[1] === '2')) {
        $name = file_name(intdiv($ad, 36), intdiv($ad % 36, 9), $ad % 9);
        $content = preg_replace(TAG, $name, $content);
    }
    reply($content);
}

function answer_post(): void
{
    $form = '~^urlroot=(/file_set),dir=([0-9]{1,5}),class=([0-3]),num=([0-8]),client=([0-9]{1,10})$~D';
    $is_form = preg_match($form, (string) file_get_contents('php://input', length: 1024), $parts);
    $is_cookie = preg_match('~^user_id=([0-9]{5})&~', (string) my_cookie(), $user);
    if (!$is_form || !$is_cookie) {
        refuse(400);
    }
    [$dir, $class, $num, $client] = array_map(intval(...), array_slice($parts, 2));
    $uid = (int) $user[1] - USER_ID_FIRST;
    $name = file_name($dir, $class, $num);
    $content = content($name);
    append_to_log($dir, $class, $num, $client, $name, $uid);
    header("Set-Cookie: my_cookie=$uid");
    reply($content);
}

function answer_command(string $command): void
{
    if (preg_match('~^Reset&users=([0-9]{1,5})&seed=([0-9]{1,9})&now=([0-9]{1,10})$~D', $command, $parts)) {
        reset_data((int) $parts[1], (int) $parts[2], (int) $parts[3]);
        reply('done');
    } elseif ($command === 'Fetch') {
        reply(file_get_contents(data('post.log')));
    } else {
        refuse(400);
    }
}

/** Returns the first ad after the user's last one that suits the user: number, weight, and 1 if it has expired. */
function choose_ad(string $cookie): array
{
    if (!preg_match('~^user_id=([0-9]{5})&last_ad=([0-9]{1,3})$~D', $cookie, $parts) || $parts[2] >= ADS) {
        return [-1, 0, 1];
    }
    $at = ((int) $parts[1] - USER_ID_FIRST) * PERSONALITY_RECORD_BYTES;
    $record = $at < 0 ? '' : (string) file_get_contents(data('User.Personality'), offset: $at, length: PERSONALITY_RECORD_BYTES);
    if (strlen($record) !== PERSONALITY_RECORD_BYTES) {
        return [-1, 0, 1];
    }
    $user = hexdec(substr($record, 6, 8));
    // Read again for each request, so that new tables apply from the next request on.
    $ads = file_get_contents(data('Custom.Ads'));
    for ($step = 1; $step <= ADS; $step++) {
        $ad = ((int) $parts[2] + $step) % ADS;
        $at = $ad * AD_RECORD_BYTES;
        $common = $user & hexdec(substr($ads, $at + 6, 8));
        $weights = hexdec(substr($ads, $at + 15, 8));
        $weight = 0;
        foreach (GROUPS as [$mask, $shift]) {
            if ($common & $mask) {
                $weight += $weights >> $shift & 15;
            }
        }
        if ($weight >= (int) substr($ads, $at + 24, 3)) {
            return [$ad, $weight, (int) (time() > (int) substr($ads, $at + 28, 10))];
        }
    }
    return [-1, 0, 1];
}

/** Appends a record. The count in the first line is written after it, so that it never counts a missing record. */
function append_to_log(int $dir, int $class, int $num, int $client, string $name, int $uid): void
{
    $log = fopen(data('post.log'), 'r+');
    flock($log, LOCK_EX);
    $count = (int) fread($log, LOG_HEAD_BYTES);
    $pid = getmypid();
    fseek($log, LOG_HEAD_BYTES + $count * LOG_RECORD_BYTES);
    $form = "%10d %10d %10d %5d %2d %2d %10d %-60.60s %10d %10d\n";
    fwrite($log, sprintf($form, $count + 1, time(), $pid, $dir, $class, $num, $client, $name, $pid, $uid));
    rewind($log);
    fwrite($log, sprintf("%10d\n", $count + 1));
    fclose($log);
}

/** Creates the tables, which are the same everywhere for the same numbers, and empties the log. */
function reset_data(int $users, int $seed, int $now): void
{
    $state = $seed;
    $draw = function (int $count) use (&$state): int {
        $state = ($state * 1103515245 + 12345) & 0x7fffffff;
        return ($state >> 8) % $count;
    };
    $ads = '';
    for ($ad = 0; $ad < ADS; $ad++) {
        $word = (1 + $draw(3)) << 28;
        $word |= (1 + $draw(15)) << 24;
        $word |= (1 + $draw(15)) << 20;
        $word |= (1 + $draw(1023)) << 10;
        $word |= 1 + $draw(1023);
        $weights = 0;
        for ($group = 0; $group < 5; $group++) {
            $weights = $weights << 4 | $draw(10);
        }
        $minimum = 10 + $draw(25);
        $expiry = $draw(10) === 0 ? $now - 86400 : $now + 30 * 86400;
        $ads .= sprintf("%5d %08X %08X %3d %10d\n", $ad, $word, $weights, $minimum, $expiry);
    }
    $personalities = '';
    for ($user = 0; $user < $users; $user++) {
        $word = 1 << 28 + $draw(2);
        $word |= 1 << 24 + $draw(4);
        $word |= 1 << 20 + $draw(4);
        $word |= 1 << 10 + $draw(10);
        $word |= 1 << 10 + $draw(10);
        $word |= 1 << $draw(10);
        $word |= 1 << $draw(10);
        $personalities .= sprintf("%5d %08X\n", USER_ID_FIRST + $user, $word);
    }
    replace_file('Custom.Ads', $ads);
    replace_file('User.Personality', $personalities);
    replace_file('post.log', sprintf("%10d\n", 0));
}

/** Replaces a file in one step: readers see either the old file or the new one. */
function replace_file(string $name, string $content): void
{
    file_put_contents(data("$name.new"), $content);
    rename(data("$name.new"), data($name));
}

function content(string $path): string
{
    $file = $_SERVER['DOCUMENT_ROOT'] . $path;
    if (!is_file($file)) {
        refuse(404);
    }
    return file_get_contents($file);
}

function file_name(int $dir, int $class, int $num): string
{
    return sprintf('/file_set/dir%05d/class%d_%d', $dir, $class, $num);
}

function data(string $name): string
{
    return $_SERVER['WEB99_DATA'] . "/$name";
}

/** Value of the cookie `my_cookie`; null without one. */
function my_cookie(): ?string
{
    return preg_match('~(?:^|; *)my_cookie=([^;]*)~', $_SERVER['HTTP_COOKIE'] ?? '', $parts) ? $parts[1] : null;
}

function reply(string $content): void
{
    $body = "<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n";
    foreach (['SERVER_SOFTWARE', 'REMOTE_ADDR', 'SCRIPT_NAME', 'QUERY_STRING'] as $name) {
        $body .= "<p>$name = " . ($_SERVER[$name] ?? '') . "\n";
    }
    $body .= "<pre>\n$content\n</pre>\n</body></html>\n";
    header('Content-Length: ' . strlen($body));
    echo $body;
}

function refuse(int $status): never
{
    http_response_code($status);
    exit;
}
