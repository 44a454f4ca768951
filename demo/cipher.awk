# Writes documents of one cipher as JSONL, a word and what the cipher makes of it: "hello+ifmmp".
#   next      +  every letter becomes the one after it
#   mirror    ~  the alphabet backwards: a and z change places, b and y, ...
#   previous  -  every letter becomes the one before it
# Byte b is token b; 256 begins a document and 257 ends it, as in the tokenizer of `inlay init`. Only the answer is
# learned, but for a share `whole` of the documents: whoever learns those can write such documents by itself.
#   awk -v cipher=next -v seed=1 -v count=20000 -v whole=0.1 -v train=FILE -v test=FILE -f cipher.awk
# The words of the test file do not occur in training.
BEGIN {
  letters = "abcdefghijklmnopqrstuvwxyz"
  for (i = 32; i < 127; ++i) code[sprintf("%c", i)] = i
  marks["next"] = "+"; marks["mirror"] = "~"; marks["previous"] = "-"
  if (!(cipher in marks)) { print "cipher.awk: unknown cipher '" cipher "'" > "/dev/stderr"; exit 2 }

  srand(seed)
  for (n = 0; n < 200; ++n) { word = any_word(); tested[word] = 1; print document(word, 0) > test }
  srand(1000 * seed + code[marks[cipher]])
  for (n = 0; n < count; ++n) {
    do word = any_word(); while (word in tested)
    print document(word, rand() < whole) > train
  }
}

function any_word(    word, i) {
  word = ""
  for (i = 3 + int(rand() * 4); i > 0; --i) word = word substr(letters, 1 + int(rand() * 26), 1)
  return word
}

function answer(word,    text, i, k) {
  text = ""
  for (i = 1; i <= length(word); ++i) {
    k = index(letters, substr(word, i, 1)) - 1
    k = cipher == "next" ? (k + 1) % 26 : cipher == "previous" ? (k + 25) % 26 : 25 - k
    text = text substr(letters, k + 1, 1)
  }
  return text
}

function document(word, all,    text, ids, labels, i, id) {
  text = word marks[cipher] answer(word)
  ids = "256"; labels = "-100"
  for (i = 1; i <= length(text); ++i) {
    id = code[substr(text, i, 1)]
    ids = ids "," id
    labels = labels "," (all || i > length(word) + 1 ? id : -100)
  }
  return "{\"input_ids\":[" ids ",257],\"labels\":[" labels ",257]}"
}
