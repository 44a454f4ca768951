#pragma once

#include <inlay/model.h>
#include <inlay/ops.h>
#include <inlay/tokenizer.h>
#include <inlay/train.h>
#include <inlay/version.h>
