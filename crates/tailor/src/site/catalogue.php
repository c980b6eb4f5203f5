<?php
// Page of a shop's catalogue, built for each request; the same page number always gives the same content.

declare(strict_types=1);

const ITEMS_PER_PAGE = 40;

$page = max(1, (int) ($_GET['page'] ?? 1));
$rows = '';
for ($item = ($page - 1) * ITEMS_PER_PAGE; $item < $page * ITEMS_PER_PAGE; $item++) {
    $key = md5("item $item");
    $name = ucfirst(strtr(substr($key, 0, 12), '0123456789', 'ghijklmnop'));
    $price = number_format(hexdec(substr($key, 12, 5)) / 100, 2);
    $image = $item % 240;
    $rows .= "<tr><td><img src=\"/images/$image.jpg\" alt=\"\"><td>" . htmlspecialchars($name) . "<td>$price\n";
}
$body = "<!doctype html><title>Catalogue, page $page</title><link rel=\"stylesheet\" href=\"/assets/style.css\">\n"
    . "<h1>Catalogue</h1>\n<table>\n$rows</table>\n<a href=\"?page=" . ($page + 1) . "\">More</a>\n";
header('Content-Length: ' . strlen($body));
echo $body;
