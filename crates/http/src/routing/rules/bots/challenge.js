"use strict";
(function () {
  var form = document.getElementById("challenge");
  var bar = document.getElementById("work");
  var say = document.getElementById("say");
  var bits = Number(form.dataset.bits);
  // The first bits of the fractional parts of roots of primes (FIPS 180-4, sections 4.2.2 and 5.3.3).
  var starts = [], constants = [];
  for (var number = 2; constants.length < 64; number++) {
    var isPrime = true;
    for (var divisor = 2; divisor * divisor <= number; divisor++) isPrime = isPrime && number % divisor !== 0;
    if (!isPrime) continue;
    if (starts.length < 8) starts.push((Math.sqrt(number) * 4294967296) | 0);
    constants.push((Math.pow(number, 1 / 3) * 4294967296) | 0);
  }
  var words = new Int32Array(64);
  function turn(word, count) { return (word >>> count) | (word << (32 - count)); }
  // First word of the SHA-256 of a text that fits into one block.
  function firstWord(text) {
    words.fill(0, 0, 16);
    for (var at = 0; at < text.length; at++) words[at >> 2] |= text.charCodeAt(at) << (24 - (at % 4) * 8);
    words[text.length >> 2] |= 128 << (24 - (text.length % 4) * 8);
    words[15] = text.length * 8;
    var a = starts[0], b = starts[1], c = starts[2], d = starts[3];
    var e = starts[4], f = starts[5], g = starts[6], h = starts[7];
    for (var round = 0; round < 64; round++) {
      if (round > 15) {
        var w15 = words[round - 15], w2 = words[round - 2];
        words[round] = words[round - 16] + (turn(w15, 7) ^ turn(w15, 18) ^ (w15 >>> 3)) + words[round - 7] +
          (turn(w2, 17) ^ turn(w2, 19) ^ (w2 >>> 10));
      }
      var first = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + constants[round] + words[round]) | 0;
      var second = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + first) | 0;
      d = c; c = b; b = a; a = (first + second) | 0;
    }
    return (a + starts[0]) | 0;
  }
  if (!navigator.cookieEnabled) {
    say.textContent = "This page needs a cookie, to remember that this check was passed. Allow cookies for this site, then reload.";
    return;
  }
  var token = form.elements.t.value, nonce = 0;
  function work() {
    var end = Date.now() + 40;
    do {
      for (var count = 0; count < 256; count++, nonce++) {
        if (firstWord(token + ":" + nonce) >>> (32 - bits) === 0) {
          bar.value = 1;
          say.textContent = "Done. The page loads now.";
          var input = document.createElement("input");
          input.type = "hidden"; input.name = "n"; input.value = String(nonce);
          form.appendChild(input);
          form.submit();
          return;
        }
      }
    } while (Date.now() < end);
    bar.value = 1 - Math.exp(-nonce / Math.pow(2, bits));
    setTimeout(work, 0);
  }
  bar.hidden = false;
  setTimeout(work, 0);
})();
