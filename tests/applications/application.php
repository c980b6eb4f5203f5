<?php
// Says what it was asked, or does what the query says.
switch ($_GET['do'] ?? '') {
    case 'empty':
        http_response_code(204);
        break;
    case 'cookies':
        header('Set-Cookie: a=1; Path=/');
        header('Set-Cookie: b=2; HttpOnly', false);
        header("X-Latin: caf\xe9");
        header('X-eMPTY:');
        echo 'two cookies';
        break;
    case 'error':
        http_response_code(503);
        header('Retry-After: 7');
        echo 'the application is out of order';
        break;
    case 'redirect':
        header('Location: /elsewhere?a=b', true, 307);
        break;
    case 'stream':
        for ($count = 0; $count < 5; $count++) {
            echo str_repeat("piece $count\n", 1000);
            flush();
            usleep(10000);
        }
        break;
    case 'broken':
        header('Content-Length: 100000');
        echo str_repeat('x', 10000);
        flush();
        posix_kill(getmypid(), SIGKILL);
        break;
    default:
        header('Content-Type: text/plain');
        echo $_SERVER['REQUEST_METHOD'], ' ', $_SERVER['REQUEST_URI'], "\n";
        foreach (getallheaders() as $name => $value) {
            echo "$name: $value\n";
        }
        $content = file_get_contents('php://input');
        echo "\n", strlen($content), ' ', md5($content), "\n";
}
